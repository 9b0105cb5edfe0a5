"""The blocking twin of `execserver_client`: the same names, for any thread, without asyncio in sight."""
