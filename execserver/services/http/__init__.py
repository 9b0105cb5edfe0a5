"""`http/request`: requests made from this machine on a client's behalf (wire contract, section 13).

`service` is all that others import; the rest, the HTTP client and TLS are loaded with the first request.
"""
