"""Continuous integration on Gitea's and GitHub's runners: what is built where, the workflows, and the jobs in them."""
