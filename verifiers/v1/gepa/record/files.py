"""The names of the files in a run directory, and of the text that they hold."""

from verifiers.v1.gepa.config import CONFIG_FILE as CONFIG_FILE

COMPONENT = "system_prompt"
"""The one text of a candidate that is optimized; its key in `candidates.json`."""

EVAL_FILE = "configs/eval.json"
SPLITS_FILE = "splits.json"
IDENTITY_FILE = "identity.json"
TRACES_FILE = "traces.jsonl"
REFLECTIONS_FILE = "reflections.jsonl"
DECISIONS_FILE = "decisions.jsonl"
PROPOSALS_FILE = "proposals.jsonl"
CANDIDATES_FILE = "candidates.json"
RUN_LOG_FILE = "run_log.json"
TREE_FILE = "candidate_tree.html"
PROMPT_FILE = "best_system_prompt.txt"
RESULT_FILE = "result.json"
REPORT_FILE = "report.html"
STOP_FILE = "gepa.stop"
WANDB_FOLDER = "wandb"
MLFLOW_FOLDER = "mlruns"
LOCK_FILE = ".lock"
OWNER_FILE = ".lock.json"

OWN_FILES = frozenset(
    name.partition("/")[0]
    for name in (
        CONFIG_FILE,
        SPLITS_FILE,
        IDENTITY_FILE,
        TRACES_FILE,
        REFLECTIONS_FILE,
        DECISIONS_FILE,
        PROPOSALS_FILE,
        CANDIDATES_FILE,
        RUN_LOG_FILE,
        TREE_FILE,
        PROMPT_FILE,
        RESULT_FILE,
        REPORT_FILE,
        STOP_FILE,
        WANDB_FOLDER,
        MLFLOW_FOLDER,
        LOCK_FILE,
        OWNER_FILE,
    )
)
"""Everything that a run leaves at the top of its directory."""
