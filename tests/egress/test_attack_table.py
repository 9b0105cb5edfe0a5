"""Every attack that a network proxy is tried with, and the tests that play it."""

from __future__ import annotations

import pytest

from tests.support.attack_table import check_tests_exist

ATTACKS = {
    "NUL, percent signs and blanks in names": [
        "egress/test_attacks.py::test_a_socks_name_that_two_programs_read_in_two_ways_is_refused",
        "egress/test_hosts.py::test_what_two_programs_could_read_in_two_ways_is_no_host",
        "egress/test_http_targets.py::test_a_request_that_leads_nowhere_or_to_two_places_is_refused",
    ],
    "Punycode": ["egress/test_attacks.py::test_punycode_is_the_name_it_stands_for"],
    "mixed case, trailing dots": ["egress/test_attacks.py::test_case_and_final_dots_change_nothing"],
    "IPv4-mapped, translated, decimal, octal and hexadecimal addresses; the metadata address": [
        "egress/test_attacks.py::test_no_spelling_of_a_local_address_gets_through",
        "egress/test_attacks.py::test_socks_names_that_are_addresses_are_addresses",
        "egress/test_policy.py::test_a_denied_address_is_denied_in_each_spelling",
    ],
    "scoped IPv6": ["egress/test_attacks.py::test_a_scoped_address_is_no_host"],
    "rebinding between look-up and connect": [
        "egress/test_attacks.py::test_a_name_that_is_rebound_between_look_up_and_connect_is_refused",
        "egress/test_attacks.py::test_a_rebound_tunnel_is_closed_without_a_byte",
        "egress/test_attacks.py::test_the_connection_goes_to_the_judged_address_and_asks_no_third_time",
    ],
    "a name that leads to a private address": [
        "egress/test_attacks.py::test_an_alias_of_a_private_name_is_judged_by_its_address",
        "egress/test_policy.py::test_rules_of_the_machine_may_name_a_host_and_the_local_address_that_it_leads_to",
    ],
    "redirects to a private address": [
        "egress/test_attacks.py::test_a_redirect_to_a_private_address_is_a_request_of_its_own",
    ],
    "Host and SNI that differ from the target; absolute form with another Host": [
        "egress/test_attacks.py::test_another_host_than_the_target_is_refused",
        "egress/test_attacks.py::test_tls_for_another_host_than_that_of_the_tunnel_is_judged_like_it",
    ],
    "smuggled requests": [
        "egress/test_attacks.py::test_nothing_is_smuggled_behind_a_body_with_two_ends",
        "egress/test_attacks.py::test_what_is_behind_a_request_is_judged_as_one",
        "egress/test_smuggling.py::test_a_body_does_not_lose_its_length_on_the_way",
    ],
    "smuggled answers": [
        "egress/test_attacks.py::test_an_answer_with_two_ends_is_not_passed_on",
        "egress/test_attacks.py::test_what_a_server_sends_behind_its_answer_reaches_nobody",
        "egress/test_kept_way.py::test_nothing_follows_an_answer_that_is_not_the_end",
        "egress/test_kept_way.py::test_what_a_server_says_between_two_requests_answers_none",
        "egress/test_kept_way.py::test_another_name_of_the_same_place_gets_another_connection",
    ],
    "the proxy itself, the server's own port": [
        "egress/test_attacks.py::test_the_proxy_connects_neither_to_itself_nor_to_the_server",
        "e2e/test_network_rules.py::test_no_rule_leads_to_the_server_itself",
    ],
    "UDP": [
        "egress/test_bounds.py::test_datagrams_go_nowhere",
        "sandbox/attacks/test_managed_network.py::test_only_the_ports_of_the_proxy_answer",
    ],
    "slow loris": [
        "egress/test_bounds.py::test_a_slow_head_is_not_waited_for",
        "egress/test_bounds.py::test_half_a_tunnel_is_not_kept_for_ever",
    ],
    "thousands of half-open tunnels": [
        "egress/test_places.py::test_a_thousand_half_open_tunnels_are_bounded_and_others_go_on",
        "e2e/test_network_tunnels.py::"
        "test_a_process_has_its_most_tunnels_at_once_and_another_one_waits_for_a_place",
    ],
    "huge heads": [
        "egress/test_bounds.py::test_a_head_without_end_is_refused",
        "egress/test_http_heads.py::test_a_head_that_does_not_end_is_refused",
    ],
    "what outlives its process": [
        "egress/test_attacks.py::test_after_the_end_of_the_process_nobody_is_served",
        "e2e/test_network_tunnels.py::test_what_outlives_its_process_loses_the_proxy_with_it",
    ],
    "another process that uses the port": [
        "egress/test_attacks.py::test_another_user_of_the_machine_is_not_served",
        "egress/test_peers.py::test_another_user_who_is_gone_at_once_is_not_served",
        "sandbox/attacks/test_managed_network.py::test_nobody_outside_reaches_the_port",
    ],
    "the ways past the proxy: direct connections, other networks, unix sockets": [
        "sandbox/attacks/test_managed_network.py::test_only_the_ports_of_the_proxy_answer",
        "sandbox/attacks/test_managed_network.py::"
        "test_the_ports_can_neither_be_taken_nor_the_network_changed",
        "mcp/test_call_network.py::test_past_the_proxy_there_is_nothing",
    ],
    "the environment of grandchildren": [
        "e2e/test_network_rules.py::test_what_a_command_starts_is_led_and_held_as_it_is",
    ],
    "DNS as a channel": [
        "egress/test_bounds.py::test_many_new_names_are_looked_up_slowly",
        "egress/test_bounds.py::test_a_name_of_any_length_is_bounded",
        "services/test_egress_trail.py::test_ever_new_names_fill_no_log",
    ],
    "masked credentials sent elsewhere, or heard of": [
        "egress/test_interception.py::test_no_other_host_gets_the_value_and_its_tls_is_not_opened",
        "egress/test_masking_attacks.py::test_a_request_that_is_echoed_gets_no_value",
        "egress/test_masking_attacks.py::test_a_later_request_of_a_connection_cannot_name_another_host",
        "e2e/masking/test_masking.py::test_nothing_in_a_sandbox_tells_the_real_values",
    ],
    "the certificates that others trust": [
        "e2e/masking/test_certificates.py::"
        "test_a_sandbox_that_may_write_the_home_cannot_change_what_others_trust",
        "e2e/masking/test_certificates.py::"
        "test_the_first_command_of_a_server_cannot_change_what_others_trust",
    ],
    "labels that a holder adds": [
        "e2e/test_network_rules.py::test_the_rules_of_a_label_are_for_tokens_that_were_issued_with_it",
    ],
    "floods of questions": [
        "mcp/test_call_network.py::test_a_call_that_makes_up_hosts_does_not_ask_for_ever",
    ],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_has_its_tests(attack: str) -> None:
    check_tests_exist(ATTACKS[attack])
