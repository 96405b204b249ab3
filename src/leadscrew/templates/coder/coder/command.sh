# One command of the coder's shell. A file that is read in with `source` counts as a script: bash says nothing about jobs
# and terminals in it, as it would at its prompt.
\builtin eval -- "$CODER_COMMAND"
