"""From a policy and the host's facts to the plan of a view."""

from __future__ import annotations

from execserver.sandbox.facts import Facts
from execserver.sandbox.host import Host
from execserver.sandbox.plan import ViewPlan
from execserver.sandbox.policy import Policy


def plan_for_files(policy: Policy, host: Host, facts: Facts | None = None) -> ViewPlan:
    """Return the view of a file worker.  `facts` collects what the policy and the plan rest on.

    Raises PlanRefused; `facts` is complete then, too, and the refusal stands while it holds.
    """
    raise NotImplementedError


def plan_for_process(
    policy: Policy, host: Host, facts: Facts | None = None, managed_network: bool = False
) -> ViewPlan:
    """Return the view of a command; `managed_network` is the request's `enforceManagedNetwork`.

    With ROOT_HOST files are not restricted; unless the network is NETWORK_PROXY nothing but `syscall_filter`
    is to be applied then.  Raises PlanRefused as `plan_for_files` does.
    """
    raise NotImplementedError
