/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the cases of the store talk to it, and the list of them. `who` is a slot: its rank is who % CASE_RANKS, so that
 * slot 9 is the next process at rank 1.
 */
#ifndef STORE_TALK_H
#define STORE_TALK_H

#include <check.h>

#include "store_cases.h"

#define NOBODY (-1)

const char *say(struct bench *b, int who, const char *line);
const char *got(struct bench *b, const char *field);
void twice(struct bench *b, int who, const char *line, const char *status);
const char *field(struct bench *b, const char *name);
void enlist(struct bench *b, int who, int create, int world, const char *policy);
void acks(struct bench *b, int from, int to);
void group(struct bench *b, int world, const char *policy);
const char *report(struct bench *b, int who, const char *rest);
void accuse(struct bench *b, int by, int victim);
void prove(struct bench *b, int victim);
void tell(struct bench *b, char *record, size_t bytes, const char *ph);
const char *hello(struct bench *b, int who, const char *record);

#define SAYS(b, who, line, status) ck_assert_str_eq(say(b, who, line), status)
#define GOT(b, field, value) ck_assert_str_eq(got(b, field), value)

#define STORE_CASES(X) \
	X(forms_when_world_is_ready) \
	X(prologue_refuses) \
	X(accused_goes_with_force_one) \
	X(minority_has_no_quorum_until_proof) \
	X(who_was_removed_has_no_vote_once_members_went_on) \
	X(who_knows_that_it_is_fenced_is_not_awaited) \
	X(pending_members_count_where_half_decides) \
	X(half_is_enough_while_sure) \
	X(half_is_not_enough_in_a_new_life) \
	X(emptied_store_is_told) \
	X(greater_view_wins_and_rival_is_fenced) \
	X(reports_stand_when_their_view_is_told_active) \
	X(rival_of_the_same_epoch_is_fenced) \
	X(uncommitted_view_is_dropped_in_a_new_life) \
	X(spoiled_and_mismatch_fail_for_all) \
	X(complaints_drop_the_one_with_more) \
	X(complaints_wait_for_those_of_others) \
	X(joiner_pends_and_is_admitted) \
	X(accused_joiner_is_dropped_though_it_reports) \
	X(manual_joiner_waits_to_be_asked_for) \
	X(leaver_is_gone_and_last_one_closes) \
	X(a_report_tells_that_the_view_was_active) \
	X(operator_evicts_retires_forgets) \
	X(too_late_calls_learn_the_state) \
	X(peek_is_short_until_something_moves) \
	X(a_report_counts_once) \
	X(who_is_waited_for_with_force_one) \
	X(a_new_life_waits_for_all_again) \
	X(an_older_copy_counts_what_it_holds) \
	X(who_asks_again_is_told_whose_ack_is_missing) \
	X(what_changed_makes_up_the_record) \
	X(what_changed_long_ago_is_told_in_full) \
	X(a_second_set_does_not_join_a_running_group) \
	X(a_closed_group_is_followed_by_the_next) \
	X(the_dead_make_room_for_a_new_set) \
	X(a_proof_of_others_makes_no_room) \
	X(a_joiner_of_the_old_group_is_none_of_the_next) \
	X(the_later_group_wins_over_an_older_copy) \
	X(founders_with_another_world_are_told) \
	X(a_rank_given_twice_is_told) \
	X(a_dead_founder_makes_room) \
	X(settings_that_must_be_alike_are_compared) \
	X(long_values_are_shown_where_they_differ) \
	X(two_jobs_do_not_form_one_group) \
	X(a_founder_that_comes_back_is_no_stranger) \
	X(x_late_gone) \
	X(x_any_joiner_in_form) \
	X(x_never_takes_founder) \
	X(x_u_voter) \
	X(late_register_gives_up_nothing) \
	X(joiner_waits_for_the_rank_of_a_voter)

#define STORE_CASE(name) void name(struct bench *b);
STORE_CASES(STORE_CASE)
#undef STORE_CASE

#endif
