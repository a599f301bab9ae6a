"""Calls operations by the client that openapi-python-client generated; the package lies in the folder of the first argument."""

import os
import sys

sys.path.insert(0, sys.argv[1])

from skep_client import AuthenticatedClient  # noqa: E402
from skep_client.api.exec_ import exec_in_vm  # noqa: E402
from skep_client.api.files import list_folder, make_folder, read_file, write_file  # noqa: E402
from skep_client.api.keys import create_key, revoke_key, whoami  # noqa: E402
from skep_client.api.public import health  # noqa: E402
from skep_client.api.swarm import boot, end_vm, list_vms  # noqa: E402
from skep_client.api.tickets import change_ticket, claim_tickets, create_ticket  # noqa: E402
from skep_client.models import (  # noqa: E402
    BootBody,
    ChangeTicketBody,
    ClaimTicketsBody,
    CreateKey,
    CreateTicket,
    ErrorBody,
    ExecInVmRequest,
    MakeBody,
    Role,
    TicketStatus,
    WriteBody,
)

client = AuthenticatedClient(base_url=os.environ["SKEP_URL"], token=os.environ["SKEP_API_KEY"], timeout=120)


def call(operation, *arguments, **parameters):
    """The answer of an operation, which the generated client must know by its type."""
    answer = operation.sync(*arguments, client=client, **parameters)
    if answer is None or isinstance(answer, ErrorBody):
        raise SystemExit(f"{operation.__name__}: {answer}")
    print(operation.__name__.rsplit(".", 1)[-1])
    return answer


assert call(health).status.value == "ok"
assert "server:admin" in {scope.value for scope in call(whoami).scopes}

folder = os.environ["SKEP_TEST_FOLDER"]
assert call(make_folder, body=MakeBody(path=folder)).created
assert call(write_file, body=WriteBody(path=f"{folder}/plan.md", content="# Plan\n")).created
assert call(read_file, path=f"{folder}/plan.md").content == "# Plan\n"
assert [entry.name for entry in call(list_folder, path=folder).entries] == ["plan.md"]

ticket = call(create_ticket, body=CreateTicket(title="Port the parser"))
claimed = call(claim_tickets, body=ClaimTicketsBody(assignee="python")).tickets
assert [other.id for other in claimed] == [ticket.id]
finished = call(change_ticket, ticket.id, body=ChangeTicketBody(status=TicketStatus.COMPLETED, assignee="python"))
assert finished.status == TicketStatus.COMPLETED

key = call(create_key, body=CreateKey(name="python", role=Role.AGENT))
assert call(revoke_key, key.id).revoked_at is not None

vm = call(boot, body=BootBody(count=1)).vms[0]
assert call(exec_in_vm, vm.pid, body=ExecInVmRequest(command="echo $((6 * 7))")).stdout == "42\n"
assert [other.id for other in call(list_vms).vms] == [vm.id]
call(end_vm, vm.id)
