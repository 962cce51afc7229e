"""The verbs prepare, launch and sagemaker, and graphs for Apache Beam and Airflow."""
