"""Queue metrics over time: minutes made of what leaders tell, and CloudWatch's statistics and expressions over them."""
