"""The console's web pages: routes, guards of each request, templates, and what the browser loads."""
