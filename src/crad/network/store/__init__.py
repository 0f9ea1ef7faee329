"""Messages through a store that all members reach: a folder, S3, SFTP. Nothing in it is trusted."""
