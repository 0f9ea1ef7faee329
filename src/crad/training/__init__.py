"""What one client does on its own device: losses, the local epoch, running teachers, evaluation."""
