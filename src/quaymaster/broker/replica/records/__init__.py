"""Records and bodies as a replica reads them back, and what it does about damaged ones."""
