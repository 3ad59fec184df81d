/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between two ranks of one process, connected by hand: what befalls them is there for sure, at the moment that counts. A
 * change finds all CTAs of a way waiting, with the ring full or empty: they leave, so that it can be made, and go on behind it.
 * Is the peer another process by then, they end; and so does a CTA that comes in only then, whatever it finds.
 *
 *	gpu-pairs
 */
#include "world.cuh"

#define PIECE ((size_t)CVY_GPU_PIECE_WORDS * 8)
#define LARGE ((CVY_GPU_RING + 3) * PIECE + 5)

extern "C" const struct cvy_gpu_message_ops cvy_gpu_message_ops;
static const struct cvy_gpu_message_ops *const messages = &cvy_gpu_message_ops;
static int failures, checks;

static void wrong(const char *what, long long got, long long want)
{
	fprintf(stderr, "%s: %lld, not %lld\n", what, got, want);
	failures++;
}

static uint8_t byte_of(int from, size_t i)
{
	return (uint8_t)((i * 2654435761u + (size_t)from * 977) >> 11);
}

/* One message of rank @r, to or from the other, of the process that has had its rank since @since. */
static void post(int r, int way, size_t bytes, uint32_t since)
{
	struct cvy_gpu_messages m = {};
	uint8_t *at = way == CVY_GPU_SENDS ? ranks[r].send : ranks[r].recv;

	m.call.rank = r;
	m.pairs = 1;
	m.with[0] = { !r, since, { -1, -1 }, { 0, 0 } };
	m.with[0].first[way] = 0;
	m.message[0] = { at, bytes, 7, -1, 0 };
	CUDA(cudaSetDevice(ranks[r].device));
	OK(ranks[r].gpu, messages->launch(ranks[r].gpu, &m, (struct CUstream_st *)ranks[r].stream));
}

static void prepare(size_t bytes)
{
	for (int r = 0; r < n; r++) {
		for (size_t i = 0; i < bytes; i++)
			ranks[r].host[i] = byte_of(r, i);
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaMemcpy(ranks[r].send, ranks[r].host, bytes, cudaMemcpyHostToDevice));
		CUDA(cudaMemset(ranks[r].recv, 0xc5, MOST));
		CUDA(cudaDeviceSynchronize());
	}
}

/* Rank @r has @bytes of the other, and nothing behind them. */
static void expect(const char *what, int r, size_t bytes)
{
	synchronise();
	checks++;
	CUDA(cudaSetDevice(ranks[r].device));
	CUDA(cudaMemcpy(ranks[r].out, ranks[r].recv, bytes + 64, cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < bytes + 64; i++) {
		int want = i < bytes ? byte_of(!r, i) : 0xc5;

		if (ranks[r].out[i] == want)
			continue;
		fprintf(stderr, "rank %d, byte %zu of %zu: ", r, i, bytes);
		wrong(what, ranks[r].out[i], want);
		return;
	}
}

static void outcome(const char *what, int r, int want)
{
	uint64_t failure;

	synchronise();
	checks++;
	OK(ranks[r].gpu, messages->failure(ranks[r].gpu, &failure));
	if ((int)(failure & 0xff) != -want)
		wrong(what, -(long long)(failure & 0xff), want);
}

/* All CTAs of @r wait for what the other does not do; then a view comes, in which the other's process is of @since. */
static void change(int r, uint32_t since)
{
	struct cvy_gpu_counters c;

	do /* they are there */
		OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 0));
	while (c.entered == c.finished);
	usleep(20000);
	freeze(r); /* ends when they have left */
	epoch++;
	ranks[r].roll.since[!r] = since;
	thaw(r, mask, finished(r), 0);
	epoch--;
	freeze(!r);
	epoch++;
	thaw(!r, mask, finished(!r), 0);
}

static struct cvy_gpu_flow *flow_of(int r, int way)
{
	char *status = (char *)ops->status(ranks[r].gpu);

	return &((struct cvy_gpu_control *)(status - offsetof(struct cvy_gpu_control, status)))->flow[!r][way];
}

/* ---- cases ---- */

static void sizes(void)
{
	const size_t all[] = { 0,
			       1,
			       2040,
			       2041,
			       2048,
			       CVY_GPU_CELL_MOST,
			       CVY_GPU_CELL_MOST + 1,
			       2 * PIECE,
			       17 * PIECE + 3,
			       200 * PIECE + 1,
			       LARGE };

	for (size_t bytes : all) {
		prepare(bytes);
		post(0, CVY_GPU_SENDS, bytes, 1);
		post(1, CVY_GPU_TAKES, bytes + 30, 1);
		expect("sizes", 1, bytes);
		outcome("sizes", 1, 0);
	}
}

/* The ring is full, nobody takes; or it is empty. Nothing is sent twice: what follows is right, too. */
static void changes(void)
{
	for (int first = 0; first < 2; first++) {
		prepare(LARGE);
		post(first, first ? CVY_GPU_TAKES : CVY_GPU_SENDS, LARGE, 1);
		change(first, 1);
		post(!first, first ? CVY_GPU_SENDS : CVY_GPU_TAKES, LARGE, 1);
		expect("a change", 1, LARGE);
		outcome("a change", first, 0);
		sizes();
	}
}

/* Behind the change the peer is another process: @asked says whose the messages were. Its memory would be fresh: here it counts on. */
static void replaced(uint32_t asked)
{
	prepare(LARGE);
	post(1, CVY_GPU_TAKES, LARGE, asked);
	change(1, 2);
	outcome("a peer that was replaced", 1, COVEY_ERR_PEER);
	post(1, CVY_GPU_TAKES, 10, 1);
	outcome("a message for who was before", 1, COVEY_ERR_PEER);
	freeze(1);
	freeze(0);
	epoch++;
	ranks[1].roll.since[0] = 1;
	for (int r = 0; r < n; r++)
		thaw(r, mask, finished(r), 0);
}

/* Others of the same launch have left, and noted whose messages these are: not of the process that has the rank now. */
static void late_comers(void)
{
	const uint64_t noted[2] = { 9, 0 }, zero[2] = { 0, 0 };
	struct cvy_gpu_flow flow;

	prepare(LARGE);
	CUDA(cudaSetDevice(ranks[1].device));
	CUDA(cudaMemcpy(&flow_of(1, CVY_GPU_TAKES)->begun, noted, sizeof(noted), cudaMemcpyHostToDevice));
	CUDA(cudaDeviceSynchronize());
	post(1, CVY_GPU_TAKES, LARGE, 0);
	outcome("CTAs that come late", 1, COVEY_ERR_PEER);
	CUDA(cudaMemcpy(&flow, flow_of(1, CVY_GPU_TAKES), sizeof(flow), cudaMemcpyDeviceToHost));
	if (memcmp(&flow.begun, zero, sizeof(zero)))
		wrong("the next launch finds a note", (long long)flow.begun, 0);
	sizes();
}

/* Pieces that rank @r has sent. */
static size_t pieces_of(int r)
{
	struct cvy_gpu_flow flow;

	CUDA(cudaMemcpy(&flow, flow_of(r, CVY_GPU_SENDS), sizeof(flow), cudaMemcpyDeviceToHost));
	return (size_t)flow.pieces;
}

/*
 * Rank @r sends a message without a work (@plain bytes), then one with a work. Some pieces find no room, then the other
 * rank is another process. @want: what the host is told of the first message, whose last piece finds no room, or which has
 * gone. The first piece without room is not for the first warp of a CTA. The pair is not used afterwards.
 */
static void some_with_works(int r, size_t plain, size_t with_work, int want)
{
	const size_t lead = CVY_GPU_RING - 1 - pieces_of(r) % CVY_GPU_RING;
	struct cvy_gpu_answer answer = {};
	struct cvy_gpu_messages m = {};
	struct cvy_gpu_receipt *x;

	prepare(LARGE);
	post(r, CVY_GPU_SENDS, lead * PIECE, 1);
	post(!r, CVY_GPU_TAKES, lead * PIECE, 1);
	synchronise();
	CUDA(cudaSetDevice(ranks[r].device)); /* callers have the device */
	OK(ranks[r].gpu, ops->receipt(ranks[r].gpu, &x));
	m.call.rank = r;
	m.pairs = 1;
	m.with[0] = { !r, 1, { 0, -1 }, { 0, 0 } };
	m.message[0] = { ranks[r].send, plain, 7, 1, 0 };
	m.message[1] = { ranks[r].send, with_work, 8, -1, (int16_t)messages->promise(ranks[r].gpu, x) };
	CUDA(cudaSetDevice(ranks[r].device));
	OK(ranks[r].gpu, messages->launch(ranks[r].gpu, &m, (struct CUstream_st *)ranks[r].stream));
	OK(ranks[r].gpu, messages->promised(ranks[r].gpu, x, (struct CUstream_st *)ranks[r].stream, 0));
	if (!want)
		post(!r, CVY_GPU_TAKES, plain, 1);
	CUDA(cudaStreamSynchronize(ranks[!r].stream));
	sleep(1); /* the ring is full: a change before that would find all warps at the first message */
	change(r, 2);
	outcome("sends, some with works", r, want);
	OK(ranks[r].gpu, messages->answer(ranks[r].gpu, x, &answer));
	if (answer.status != COVEY_ERR_PEER)
		wrong("the work of a send", answer.status, COVEY_ERR_PEER);
	ops->receipt_free(ranks[r].gpu, x);
	freeze(r);
	freeze(!r);
	epoch++;
	ranks[r].roll.since[!r] = 1;
	for (int k = 0; k < n; k++)
		thaw(k, mask, finished(k), 0);
}

int main(void)
{
	int devices;

	n = 2;
	if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
		printf("skipped: no device\n");
		return 77;
	}
	for (int r = 0; r < n; r++)
		ranks[r].roll.since[!r] = 1;
	open_all();
	sizes();
	changes();
	replaced(1);
	sizes();
	replaced(0);
	sizes();
	late_comers();
	some_with_works(0, (CVY_GPU_RING + 1) * PIECE, CVY_GPU_RING / 2 * PIECE, COVEY_ERR_PEER);
	some_with_works(1, 8, (CVY_GPU_RING + 1) * PIECE, 0);
	printf("%d checks, %d failed\n", checks, failures);
	return failures != 0;
}
