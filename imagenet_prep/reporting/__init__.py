"""What a person wants to see of a data set: facts, pictures and plots on one page."""
