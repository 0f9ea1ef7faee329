"""What a student does on its own device: the local epoch, losses, evaluation, targets on unlabelled images."""
