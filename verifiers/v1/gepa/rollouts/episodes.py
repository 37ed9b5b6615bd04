"""How one episode runs: with its prompt and endpoint, in this process or in a worker."""

from contextlib import AbstractAsyncContextManager

from verifiers.v1.clients import ModelContext
from verifiers.v1.env import Env
from verifiers.v1.episode import Episode
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.record.journal import Journal
from verifiers.v1.gepa.record.usage import note_calls, recorded_calls, trace_calls
from verifiers.v1.gepa.rollouts.interception import serving
from verifiers.v1.gepa.rollouts.measurements import Job
from verifiers.v1.gepa.rollouts.workers import Calls, Workers
from verifiers.v1.gepa.spend.budget import Budget
from verifiers.v1.trace import Trace


class Episodes:
    """Runs episodes of `env`."""

    def __init__(self, env: Env, config: GEPAConfig, budget: Budget, journal: Journal) -> None:
        self._env = env
        self._config = config
        self._budget = budget
        self._journal = journal
        self._workers = Workers(env, config, config.workers) if config.workers else None

    def serving(self) -> AbstractAsyncContextManager[None]:
        """What must be held open while episodes run."""
        return self._workers.serving() if self._workers else serving(self._env, self._config)

    async def run(self, job: Job, context: ModelContext) -> Episode:
        """One episode of the job's prompt on its task. What its lost calls cost is on record and
        counted, also where it is cancelled."""
        task = job.task.with_system_prompt(job.prompt)
        self._budget.attempted += 1
        calls: Calls = {}
        traces: list[Trace] = []
        kept: set[str] = set()
        try:
            if self._workers is not None:
                episode = await self._workers.run(task, context, calls)
            else:
                (slot,) = self._env.slots(task)
                episode = await self._env.run_slot(slot, context, on_trace=traces.append)
            kept = {trace.id for trace in episode.traces}
        finally:
            # What the host's own retries threw away, or an interrupt: paid for all the same.
            for trace in traces:
                if trace.id not in kept:
                    note_calls(trace_calls(trace), self._journal, self._budget)
            lost = [rows for trace_id, rows in calls.items() if trace_id not in kept]
            note_calls(recorded_calls({"traces": lost}), self._journal, self._budget)
        return episode
