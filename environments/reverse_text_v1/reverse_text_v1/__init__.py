from reverse_text_v1.taskset import ReverseTextTaskset

__all__ = ["ReverseTextTaskset"]
