"""What is measured: layers and programs, each described once."""
