"""Contacts from attention: the regression of ESM on symmetrised, corrected maps of all heads.

Shape suffixes: B batch, N layers, H heads of a layer, L tokens, R residues. This file is copied into every
checkpoint: it imports only torch and siblings.
"""

import torch
from torch import nn

from .configuration_strand import StrandConfig


def correct(a_BRRH: torch.Tensor) -> torch.Tensor:
    """Return a + its transpose, less the product of row and column sums over the total (where that is not 0).

    The average-product correction of Dunn et al. 2008 (doi:10.1093/bioinformatics/btm604), as Rao et al. 2020
    (bioRxiv 2020.12.15.422761) apply it to attention.
    """
    a_BRRH = a_BRRH + a_BRRH.transpose(1, 2)
    rows, columns, total = a_BRRH.sum(2, True), a_BRRH.sum(1, True), a_BRRH.sum((1, 2), True)
    return a_BRRH - rows * columns / total.masked_fill(total == 0, 1.0)


class ContactRegression(nn.Module):
    """A logistic regression over the heads of all layers, layer by layer; zero until one is fitted.

    Its numbers are buffers: they are fitted on structures once training is over, so no optimizer sees them.
    """

    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(self, features: int):
        super().__init__()
        self.register_buffer("weight", torch.zeros(1, features))
        self.register_buffer("bias", torch.zeros(1))


class ContactHead(nn.Module):
    """Probabilities of contact between residues."""

    def __init__(self, config: StrandConfig):
        super().__init__()
        self.framing = config.framing_token_ids or []
        self.heads = config.num_attention_heads
        self.regression = ContactRegression(config.num_hidden_layers * self.heads)

    @property
    def fitted(self) -> bool:
        """Whether the regression says anything at all."""
        return bool(self.regression.weight.any() or self.regression.bias.any())

    def _places(self, input_ids, real_BL) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where residues stand, first to last, and which of these places are residues: both (B, R)."""
        framing = torch.tensor(self.framing, device=input_ids.device, dtype=input_ids.dtype)
        framing_BL = torch.isin(input_ids, framing) & real_BL
        residue_BL = real_BL & ~framing_BL
        R = residue_BL.shape[1] - int(framing_BL.sum(1).min())
        place_BR = (~residue_BL).long().argsort(dim=1, stable=True)[:, :R]
        return place_BR, residue_BL.gather(1, place_BR)

    @torch.no_grad()
    def forward(self, encoder, input_ids, attention_mask):
        """Return (B, R, R) probabilities in float32; see `PredictsContacts`.

        One layer's maps are held at a time.
        """
        place_BR, residue_BR = self._places(input_ids, attention_mask.bool())
        both_BRR = (residue_BR[:, :, None] & residue_BR[:, None]).float()
        row_B11 = torch.arange(len(input_ids), device=input_ids.device)[:, None, None]
        weight_NH = self.regression.weight.float().view(-1, self.heads)
        logits_BRR = self.regression.bias.float() + torch.zeros_like(both_BRR)

        def add(module, _, outputs) -> None:
            maps_BRRH = outputs[1][row_B11, :, place_BR[:, :, None], place_BR[:, None]].float()
            terms_BRRH = correct(maps_BRRH * both_BRR[..., None])
            logits_BRR.add_(terms_BRRH @ weight_NH[module.layer_idx])

        kernel = encoder.config._attn_implementation
        encoder.set_attn_implementation("eager")
        hooks = [layer.attention.register_forward_hook(add) for layer in encoder.layers]
        try:
            encoder(input_ids, attention_mask)
        finally:
            for hook in hooks:
                hook.remove()
            encoder.set_attn_implementation(kernel)
        return logits_BRR.sigmoid()


class PredictsContacts:
    """What a model with an encoder, ``model``, and a ``contact_head`` (or None) can be asked."""

    config: StrandConfig
    model: nn.Module
    contact_head: ContactHead | None

    def predict_contacts(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the probability that two residues touch, (B, R, R), by the regression of the checkpoint.

        R is L without special tokens; the first residue of each row is at 0, and pairs beyond its last mean
        nothing. It is what EsmForMaskedLM.predict_contacts computes (Rao et al. 2020, bioRxiv
        2020.12.15.422761), by any kernel that the model was loaded with.

        Args:
            input_ids: (B, L) token ids.
            attention_mask: (B, L), 1 on tokens and 0 on padding, which can be on either side.

        Raises:
            ValueError: no regression was fitted.
        """
        if self.contact_head is None or not self.contact_head.fitted:
            raise ValueError("no fitted contact regression in this checkpoint (see strandlm contact-head)")
        if attention_mask is None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        return self.contact_head(self.model, input_ids, attention_mask)
