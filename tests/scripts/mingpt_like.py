"""In the manner of minGPT: a tiny transformer, AdamW, gradient clipping and accumulation under torchrun."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCABULARY, WIDTH, BLOCK = 65, 32, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        mask = torch.triu(torch.ones(BLOCK, BLOCK, dtype=torch.bool), diagonal=1)
        y = self.ln1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(BLOCK))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


dist.init_process_group(backend="gloo")
torch.manual_seed(1337 + dist.get_rank())
model = DDP(GPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accumulate = 2
for iteration in range(6):
    for micro in range(accumulate):
        model.require_backward_grad_sync = micro == accumulate - 1
        x = torch.randint(0, VOCABULARY, (4, BLOCK))
        _, loss = model(x, torch.roll(x, -1, dims=1))
        (loss / accumulate).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if dist.get_rank() == 0:
        print(f"iter {iteration}: loss {loss.item():.4f}")
dist.destroy_process_group()
