import covey.torch, torch
group = covey.torch.init_process_group(device="none")
num_nvl_bytes, num_rdma_bytes, hidden, experts = 0, 1 << 24, 128, 8
