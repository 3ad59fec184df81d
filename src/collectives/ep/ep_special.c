/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zero, copy and constant experts: a term of a sum that follows from the own token, so that nothing travels. The kernels round
 * each sum as they store it, so a term that came after them would be rounded a second time: devices have none.
 */
#include "ep.h"
#include "handle.h"
#include "reduce.h"

int cvy_ep_check_specials(struct covey_ep *ep, const struct covey_combine_args *a, const struct CUstream_st *stream)
{
	const int zero = a->zero_experts, copies = a->copy_experts, constants = a->constant_experts;

	if (zero < 0 || copies < 0 || constants < 0 || ep->shape.experts + cvy_ep_specials(a) > INT32_MAX)
		return cvy_ep_refuse(ep->group,
				     "zero_experts, copy_experts and constant_experts are %d, %d and %d: each must be "
				     "0 or more, and with the %d experts of the handle they must be below 2^31",
				     zero, copies, constants, ep->shape.experts);
	if (stream && (a->bias || cvy_ep_specials(a)))
		return cvy_ep_fail(
			ep->group, COVEY_ERR_UNSUPPORTED,
			"bias and zero, copy and constant experts are for host memory: on devices a sum is rounded "
			"before they could be added. Give NULL and 0, and add their terms to out");
	if (!cvy_ep_specials(a))
		return 0;
	if (!a->num_tokens)
		return 0;
	if (copies + constants > 0 && !a->x)
		return cvy_ep_refuse(ep->group, "x must not be NULL with copy_experts or constant_experts: give the "
						"tokens that the dispatch had");
	if (constants && (!a->constant_a1 || !a->constant_a2 || !a->constant_v))
		return cvy_ep_refuse(ep->group,
				     "constant_a1, constant_a2 and constant_v must not be NULL with constant_experts");
	if (!a->weights)
		return cvy_ep_refuse(
			ep->group,
			"weights must not be NULL with zero, copy or constant experts: their terms are made here");
	return 0;
}

/* Adds @weight * (a1 * x + a2 * v). */
static void add_constant(struct cvy_ep_call *call, const void *x, int j, float weight)
{
	const struct covey_combine_args *a = &call->combine;
	const size_t hidden = (size_t)call->ep->shape.hidden;
	const float *v = a->constant_v + (size_t)j * hidden, a1 = a->constant_a1[j], a2 = a->constant_a2[j];

	cvy_reduce_loops()->widen[call->ep->dtype](call->part, x, hidden);
	for (size_t h = 0; h < hidden; h++)
		call->sum[h] += weight * (a1 * call->part[h] + a2 * v[h]);
}

void cvy_ep_add_special(struct cvy_ep_call *call, size_t t, int32_t id, float weight)
{
	const struct covey_combine_args *a = &call->combine;
	const struct cvy_ep_shape *s = &call->ep->shape;
	const int copy = id - s->experts - a->zero_experts, constant = copy - a->copy_experts;
	const uint8_t *x;

	if (copy < 0) /* a zero expert: there may be no x */
		return;
	x = (const uint8_t *)a->x + t * cvy_ep_row_bytes(s);
	if (constant >= 0)
		add_constant(call, x, constant, weight);
	else
		cvy_reduce_loops()->weigh[call->ep->dtype](call->sum, x, weight, (size_t)s->hidden);
}
