"""Processes for tests that are forks of one with the libraries loaded, and nothing else: no thread, no connection.

Most of the time of a new process is loading. There is one process to fork from, whichever test asks first, so what it
loads is listed here.
"""

import multiprocessing

forking = multiprocessing.get_context("forkserver")
forking.set_forkserver_preload(["tests.remembering", "tests.faults.test_quests"])
