"""`plaudit doctor`: looks at settings, servers and data, and says what to change. Reads only.

`examination` runs the checks; each module has those of one subject. A check returns findings: also what is fine, so
that the reader knows what was looked at.
"""
