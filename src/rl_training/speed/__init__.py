"""What is there for speed alone: the package without this folder is correct, and slower.

Everything here takes the place of something plain that the learner, the actor or the replay does: `runtime/accelerate.py` puts it there,
and nobody else imports this folder. docs/performance.md says what each piece is worth.
"""
