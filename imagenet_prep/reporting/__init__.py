"""HTML reports of datasets: facts, pictures and plots."""
