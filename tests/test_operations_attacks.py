"""Every attack that limits, audit log and upgrades are tried with, and the tests that play it."""

from __future__ import annotations

import pytest

from tests.support.attack_table import check_tests_exist

ATTACKS = {
    "a forged audit line": [
        "audit/test_chain.py::test_words_cannot_forge_a_record",
        "audit/test_chain.py::test_no_line_can_be_removed_moved_added_or_made_up",
        "audit/test_segments.py::test_a_link_in_the_place_of_the_folder_or_a_file_is_not_followed",
        "e2e/test_audit.py::test_a_sandboxed_command_neither_sees_nor_changes_it",
        "e2e/test_audit.py::test_people_are_shown_what_was_done_without_what_a_terminal_obeys",
    ],
    "a record that is hidden, or cut until it says nothing": [
        "e2e/test_audit.py::test_members_that_a_request_does_not_have_hide_nothing_of_it",
        "audit/test_chain.py::test_a_record_has_a_bounded_length_and_says_what_was_cut",
        "audit/test_chain.py::test_words_of_the_longest_characters_make_no_line_that_breaks_the_log",
        "e2e/test_upgrade_refused.py::test_who_asks_on_and_on_fills_no_log",
    ],
    "a log that is cut at its end, or written anew": [
        "audit/test_segments.py::test_a_head_of_before_must_be_in_the_log",
        "e2e/test_audit.py::test_the_head_is_told_and_found_again",
    ],
    "a full disk under the audit log": [
        "e2e/test_audit.py::test_a_required_log_that_cannot_be_written_refuses_what_acts",
        "e2e/test_audit.py::"
        "test_a_required_log_that_has_room_for_short_records_only_lets_nothing_long_be_done",
        "audit/test_segments.py::test_what_does_not_fit_leaves_the_file_as_it_was",
        "audit/test_segments.py::"
        "test_a_disk_that_fails_at_the_end_of_a_file_costs_no_descriptor_and_begins_no_file",
        "audit/test_recording.py::test_on_a_full_disk_there_is_none_and_nothing_of_it_stays",
    ],
    "a disk that a recording fills": [
        "audit/test_recording.py::test_beyond_its_limit_nothing_is_recorded_but_that",
        "audit/test_recording.py::test_the_oldest_go",
    ],
    "a server that is killed amid its records": [
        "e2e/test_audit.py::test_a_thousand_kills_lose_no_record_that_was_answered_and_break_no_chain",
        "audit/test_segments.py::test_a_torn_line_is_cut_off_and_told",
    ],
    "secrets in the log": [
        "e2e/test_audit.py::test_secrets_stay_out_of_it",
        "e2e/test_recording.py::test_what_the_terminal_hides_is_not_recorded",
    ],
    "another session, a double fork": [
        "e2e/test_limits.py::test_nobody_hides_from_the_time_of_a_process",
        "e2e/test_limits.py::test_a_terminated_process_takes_all_along_that_it_started",
        "e2e/test_limits.py::test_a_process_has_its_share_of_the_cpu_with_all_it_starts",
        "machines/test_limits.py::test_each_limit_holds_and_names_itself",
        "machines/test_limits.py::test_a_share_of_the_cpu_holds_for_all_that_is_started",
        "resources/test_process_tree.py::test_what_was_seen_is_not_lost_with_its_parent",
    ],
    "a fork faster than the kill": [
        "resources/test_control_group.py::test_all_end_at_once_also_where_the_kernel_cannot_do_that",
        "resources/test_process_tree.py::test_no_parent_sees_its_child_die_of_the_kill",
        "resources/test_process_tree.py::test_who_gets_the_number_of_an_ended_leader_is_no_member",
    ],
    "a way out of the control group": [
        "e2e/test_limits.py::test_limits_hold_in_a_sandbox_which_cannot_write_the_control_groups",
        "machines/test_limits.py::test_a_sandbox_is_in_its_group_and_cannot_leave_it",
    ],
    "work in a sibling without limits, by ptrace": [
        "e2e/test_limits.py::test_no_limited_process_works_on_in_another_one_that_has_no_limits",
    ],
    "a lie about the end": [
        "e2e/test_limits.py::test_who_lies_about_its_end_is_not_believed",
        "core/test_process_end.py::"
        "test_who_exits_by_itself_has_no_cause_whatever_the_status_and_the_counters_say",
        "core/test_process_end.py::test_cpu_time_is_believed_only_if_it_was_used",
        "machines/test_limits.py::test_the_cause_is_right_a_thousand_times",
    ],
    "the server as the victim of its commands' memory": [
        "e2e/test_limits.py::test_children_are_preferred_by_the_oom_killer",
        "machines/test_limits.py::test_the_machines_own_memory_is_told_apart_and_the_server_outlives_it",
    ],
    "an upgrade to a planted file": [
        "e2e/test_upgrade_refused.py::test_a_file_that_others_can_write_or_that_is_none",
        "e2e/test_upgrade_refused.py::test_a_file_of_another_user",
        "relay/test_upgrade_refused.py::test_a_file_that_others_can_write_or_that_is_none",
        "relay/test_upgrade_refused.py::test_a_file_of_another_user",
        "remote/test_upgrade.py::test_a_refused_upgrade_leaves_the_connection_alone",
    ],
    "another file in the place of FILE between the look and the exec": [
        "e2e/test_upgrade_refused.py::test_a_file_that_another_one_takes_the_place_of_meanwhile",
        "e2e/test_upgrade_refused.py::test_a_file_that_is_written_to_while_it_is_looked_at",
        "e2e/test_upgrade_refused.py::test_a_name_that_leads_elsewhere_meanwhile",
        "relay/test_upgrade_refused.py::test_a_file_that_is_written_to_or_replaced_while_it_is_looked_at",
        "relay/test_upgrade_refused.py::test_a_name_that_leads_elsewhere_meanwhile",
    ],
    "an upgrade asked for from a sandbox, or by another user": [
        "e2e/test_upgrade_refused.py::test_nobody_asks_from_a_sandbox",
        "e2e/test_upgrade_refused.py::test_no_sandboxed_command_upgrades_the_server",
        "e2e/test_upgrade_refused.py::test_another_user_cannot_ask",
        "relay/test_upgrade_refused.py::test_nobody_asks_from_a_sandbox",
        "handover/test_asking.py::test_one_without_new_privileges_may_not",
        "handover/test_asking.py::test_one_in_another_user_namespace_may_not",
    ],
    "SIGHUP from a sandbox": [
        "e2e/test_upgrade_refused.py::test_no_sandboxed_command_upgrades_the_server",
        "relay/test_upgrade_refused.py::test_another_user_can_neither_ask_nor_send_the_signal",
    ],
    "who keeps others from an upgrade": [
        "e2e/test_upgrade_refused.py::test_who_may_not_ask_keeps_nobody_out_who_may",
        "e2e/test_upgrade_refused.py::test_requests_that_are_none_and_those_that_never_come",
        "e2e/test_upgrade_shortage.py::test_too_few_descriptors_end_nothing",
    ],
    "more rights behind an upgrade": [
        "e2e/test_upgrade_access.py::test_who_came_with_a_token_may_do_no_more_and_no_less",
        "e2e/test_upgrade_access.py::"
        "test_a_token_that_lapses_while_a_server_is_upgraded_is_worth_nothing_behind_it",
        "e2e/test_upgrade_access.py::test_the_rules_for_the_network_hold_on_for_what_runs",
        "relay/test_upgrade.py::test_a_token_that_is_gone_ends_its_websockets",
    ],
    "the state in the memory file: changed, planted, inherited": [
        "handover/test_carrier.py::test_the_state_cannot_be_changed_behind_the_seal",
        "handover/test_carrier.py::test_a_file_that_somebody_could_still_change_is_refused",
        "handover/test_carrier.py::"
        "test_what_was_packed_comes_out_equal_and_its_descriptors_are_closed_for_children",
        "remote/test_upgrade.py::test_no_secret_is_in_an_environment_a_command_line_or_a_descriptor",
    ],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_has_its_tests(attack: str) -> None:
    check_tests_exist(ATTACKS[attack])
