"""Complete workflows of new users, with the commands of the README and its pages."""
