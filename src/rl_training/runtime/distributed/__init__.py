"""Acting in other processes, here or on a cluster, by Ray. The driver is the learner, and the loop is the one of every run.

`remote_actors.py` stands where a local run has its `Actor`; `actor_process.py` is what runs elsewhere, and is that same `Actor`.
Nothing here is imported without `actors > 0`, and Ray itself only by `cluster.py`.
"""
