"""What `crad.run` and `crad.compare` return: figures as frames, curves and HTML, models to predict with."""
