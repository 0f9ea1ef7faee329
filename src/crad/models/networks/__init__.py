"""The networks that are built in, one file for each sort of them."""
