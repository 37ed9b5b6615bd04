from gsm8k_v1.taskset import GSM8KTaskset

__all__ = ["GSM8KTaskset"]
