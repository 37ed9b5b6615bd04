from support_intent_v1.env import SupportIntentEnv
from support_intent_v1.taskset import SupportIntentTaskset

__all__ = ["SupportIntentEnv", "SupportIntentTaskset"]
