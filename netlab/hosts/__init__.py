"""Who provides a worker's namespace and starts its program: bare processes here, containers in ``docker.py``."""
