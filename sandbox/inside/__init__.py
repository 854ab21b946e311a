"""What runs inside a sandbox: the supervisor's modules, sent to it by the client.

They use the standard library only, and Python 3.9: the image's Python runs them.
"""
