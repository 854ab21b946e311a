"""Runs, evaluations and traces on one page: live on this machine, or as one offline file."""
