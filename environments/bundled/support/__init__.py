"""The shop behind ``support-desk``: its database, its rules, its customers and their cases."""
