"""What the endpoints of /v1/admin take and give, for /openapi.json."""

from __future__ import annotations

from pydantic import BaseModel

from server.api import admin_answers as answers
from server.api import admin_models as models

BODIES: dict[str, type[BaseModel]] = {
    "admin_tenants.create": models.NewTenant,
    "admin_tenants.change": models.ChangeTenant,
    "admin_keys.create": models.NewKey,
    "admin_keys.rotate": models.RotateKey,
}
QUERIES: dict[str, type[BaseModel]] = {
    "admin_tenants.list_tenants": models.ListTenants,
    "admin_keys.list_keys": models.ListKeys,
}
ANSWERS: dict[str, tuple[int, type[BaseModel] | None, str]] = {
    "admin_tenants.create": (201, answers.TenantAnswer, "Make a tenant"),
    "admin_tenants.list_tenants": (200, answers.TenantList, "All tenants, by name"),
    "admin_tenants.get": (200, answers.TenantAnswer, "One tenant"),
    "admin_tenants.change": (200, answers.TenantAnswer, "Change its quotas"),
    "admin_tenants.usage": (200, answers.UsageAnswer, "What a tenant has at this moment"),
    "admin_tenants.suspend": (200, answers.TenantAnswer, "Let its keys open nothing"),
    "admin_tenants.resume": (200, answers.TenantAnswer, "End a suspension"),
    "admin_tenants.delete": (204, None, "End its sessions, revoke its keys, remove all it has"),
    "metrics.expose": (200, None, "Metrics of the whole server, as Prometheus reads them"),
    "admin_leaks.count_leaks": (200, answers.LeaksAnswer, "What belongs to nobody on this host"),
    "admin_doctor.examine": (200, answers.DoctorAnswer, "Is this installation as it should be?"),
    "admin_keys.create": (201, answers.NewKeyAnswer, "Make a key; it is told this once"),
    "admin_keys.list_keys": (200, answers.KeyList, "Keys, oldest first; never their secrets"),
    "admin_keys.rotate": (201, answers.NewKeyAnswer, "Another key in the place of one"),
    "admin_keys.revoke": (204, None, "Make a key worthless at once"),
}
