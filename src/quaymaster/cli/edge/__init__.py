"""HAProxy before front ends: its files (`render`), the one on a front end's host (`run`, `reload`, `drain`)."""
