"""Control planes on simulated engines, in virtual time; see `simulator.virtual`, whose names these
are. Clients of HTTP are imported from `rollcast.simulator.virtual.http` by name."""

from rollcast.simulator.virtual import laws as laws
from rollcast.simulator.virtual.ask import Answer as Answer
from rollcast.simulator.virtual.ask import EngineError as EngineError
from rollcast.simulator.virtual.async_llm import AsyncLLM as AsyncLLM
from rollcast.simulator.virtual.clock import Clock as Clock
from rollcast.simulator.virtual.clock import clock as clock
from rollcast.simulator.virtual.errors import DeadlockError as DeadlockError
from rollcast.simulator.virtual.errors import ExitedError as ExitedError
from rollcast.simulator.virtual.errors import LimitError as LimitError
from rollcast.simulator.virtual.errors import RefusedError as RefusedError
from rollcast.simulator.virtual.errors import UnseenError as UnseenError
from rollcast.simulator.virtual.errors import VirtualError as VirtualError
from rollcast.simulator.virtual.faults import Fault as Fault
from rollcast.simulator.virtual.fleet import Fleet as Fleet
from rollcast.simulator.virtual.journal import Journal as Journal
from rollcast.simulator.virtual.journal import golden as golden
from rollcast.simulator.virtual.prompts import Prompt as Prompt
from rollcast.simulator.virtual.prompts import Reply as Reply
from rollcast.simulator.virtual.ray_in_threads import ray_in_threads as ray_in_threads
from rollcast.simulator.virtual.search import Case as Case
from rollcast.simulator.virtual.search import Search as Search
from rollcast.simulator.virtual.trial import Training as Training
from rollcast.simulator.virtual.trial import Tried as Tried
from rollcast.simulator.virtual.trial import keep as keep
from rollcast.simulator.virtual.trial import training_of as training_of
from rollcast.simulator.virtual.trial import try_control as try_control
