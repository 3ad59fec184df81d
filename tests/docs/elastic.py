import covey, numpy as np
import covey.ep
group = covey.join()
E, H, T, K = 4, 8, 4, 2
ep = covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E)
x = np.zeros((T, H), np.uint16)
ids = np.zeros((T, K), np.int32)
ids[:, 1] = 1
weights = np.ones((T, K), np.float32)
info = covey.ep.to_elastic_info([1], experts=E)
