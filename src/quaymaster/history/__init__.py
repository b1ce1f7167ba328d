"""The past of queue metrics: files of minutes, of five minutes and of hours, one for each day."""
