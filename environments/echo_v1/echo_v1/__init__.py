from echo_v1.taskset import EchoTaskset

__all__ = ["EchoTaskset"]
