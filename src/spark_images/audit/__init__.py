"""What must hold in an image or a wheel, found by looking into it: nothing of it is started, no GPU is needed."""
