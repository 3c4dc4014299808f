"""Factored attention: a Potts model of one aligned family, written as a single layer of attention.

Shape suffixes: B rows, L columns, H heads, K channels per head, V vocabulary, R residues, T targets.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from .configuration_factored import FactoredConfig

NEIGHBOURS = 0.1  # what the score of a pair beside another one counts for it
QUIET = 0.5  # what the mean size of all columns counts for that of each


@dataclass
class FactoredOutput(MaskedLMOutput):
    """The output of FactoredForMaskedLM; ``penalty`` is what training adds to the targets' mean loss."""

    penalty: torch.Tensor | None = None


@dataclass
class ToldOutput(BaseModelOutput):
    """The output of FactoredModel."""

    penalty: torch.Tensor | None = None


class FactoredPreTrainedModel(PreTrainedModel):
    """What the factored models share."""

    config: FactoredConfig
    base_model_prefix = "model"

    def _init_weights(self, module: nn.Module):
        if isinstance(module, FactoredModel):
            init.normal_(module.queries, std=self.config.initializer_range)
            init.normal_(module.keys, std=self.config.initializer_range)
            init.normal_(module.values, std=self.config.value_initializer_range)
        elif isinstance(module, FactoredForMaskedLM):
            init.zeros_(module.bias)


class FactoredModel(FactoredPreTrainedModel):
    """What each column is told by the others: sum over j of J[i, j, x_j].

    J[i, j] is the mean of sum over h of A_h[i, j] W_h and of its transpose for [j, i], as couplings have no
    direction. W_h is the head's values over the root of K, as its scores are: Adam moves all weights alike,
    and couplings are the better for values that learn more slowly than queries and keys.

    Queries and keys are learned for each column and do not see the sequence, values depend on the token
    alone, and a column never attends to itself, so what is said of position i does not depend on x_i
    (Bhattacharya et al. 2021, Single layers of attention suffice to predict protein contacts, bioRxiv
    2020.12.21.423882). Tokens other than residues (gaps, unknown, masks, padding) tell nothing. In training
    the squares of the couplings are a penalty, as in other Potts models.
    """

    def __init__(self, config: FactoredConfig):
        super().__init__(config)
        H, L, R = config.num_attention_heads, config.num_columns, len(config.residue_token_ids)
        K = config.hidden_size // H
        self.queries = nn.Parameter(torch.empty(H, L, K))
        self.keys = nn.Parameter(torch.empty(H, L, K))
        self.values = nn.Parameter(torch.empty(H, R, R))
        self.post_init()

    def attention(self) -> torch.Tensor:
        """Return A (H, L, L): rows sum to 1, the diagonal is 0."""
        scores_HLL = self.queries @ self.keys.mT * self.queries.shape[-1] ** -0.5
        itself_LL = torch.eye(scores_HLL.shape[-1], dtype=torch.bool, device=scores_HLL.device)
        return scores_HLL.masked_fill(itself_LL, -torch.inf).softmax(-1)

    def _pairs(self) -> torch.Tensor:
        """Return J as a symmetric matrix (L * R, L * R): [j and a, i and b] is J[i, j, a, b].

        Rows of letters as zeros and ones are multiplied with it at once, not column by column.
        """
        A_HLL = self.attention()
        H, L, _ = A_HLL.shape
        K, R = self.queries.shape[-1], self.values.shape[-1]
        J = A_HLL.permute(1, 2, 0).reshape(L * L, H) @ (self.values.reshape(H, R * R) * K**-0.5)
        pairs = J.view(L, L, R, R).permute(1, 2, 0, 3).reshape(L * R, L * R)
        return (pairs + pairs.T) / 2

    def couplings(self) -> torch.Tensor:
        """Return J (L, L, R, R): [i, j, a, b] is what residue a in column j adds to the logit of b in i.

        It is also what b in i adds to the logit of a in j.
        """
        L, R = self.queries.shape[1], self.values.shape[-1]
        return self._pairs().view(L, R, L, R).permute(2, 0, 1, 3)

    def predict_contacts(self) -> torch.Tensor:
        """Return a contact score (L, L), not a probability: larger means more strongly coupled.

        Couplings in the zero-sum gauge, Frobenius norm, average-product correction (Ekeberg et al. 2013,
        doi:10.1103/PhysRevE.87.012707), and a tenth of the scores of the eight pairs around each, as helices
        and strands side by side touch at several residues in a row; divided by the geometric mean of the
        sizes of the two columns, a size being the root mean square of a column's scores and half the mean of
        that over columns, as scores of some columns vary more than others'. The diagonal is 0.
        """
        with torch.no_grad():
            J = self.couplings().float()
        J = J - J.mean(2, keepdim=True)
        J = J - J.mean(3, keepdim=True)
        norms_LL = J.square().sum((2, 3)).sqrt()
        total = norms_LL.sum().clamp(min=torch.finfo(torch.float32).tiny)
        scores_LL = norms_LL - norms_LL.sum(1, keepdim=True) * (norms_LL.sum(0, keepdim=True) / total)
        scores_LL.fill_diagonal_(0.0)
        around_LL = 9 * nn.functional.avg_pool2d(scores_LL[None], 3, stride=1, padding=1)[0] - scores_LL
        scores_LL = (scores_LL + NEIGHBOURS * around_LL).fill_diagonal_(0.0)
        sizes_L = scores_LL.square().mean(1).sqrt()
        sizes_L = (sizes_L + QUIET * sizes_L.mean()).clamp(min=torch.finfo(torch.float32).tiny).sqrt()
        return scores_LL / (sizes_L[:, None] * sizes_L)

    @can_return_tuple
    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs
    ) -> ToldOutput:
        """Return what the other columns say of each: ``last_hidden_state`` is (B, L, R).

        Args:
            input_ids: (B, L) whole rows of the alignment, without special tokens.
            attention_mask: (B, L); tokens where it is 0 tell nothing.
            **kwargs: ``output_attentions`` adds the heads' maps, (B, H, L, L), the same for all rows.

        Raises:
            ValueError: rows of another length than the alignment's.
        """
        L = self.config.num_columns
        if input_ids.ndim != 2 or input_ids.shape[1] != L:
            raise ValueError(
                f"input_ids of shape {tuple(input_ids.shape)}: this model reads rows of an alignment of "
                f"{L} columns, without special tokens (shape (rows, {L}))"
            )
        pairs = self._pairs()
        residues_R = torch.tensor(self.config.residue_token_ids, device=input_ids.device)
        seen_BLR = (input_ids[..., None] == residues_R).to(pairs.dtype)
        if attention_mask is not None:
            seen_BLR = seen_BLR * attention_mask[..., None].to(pairs.dtype)
        told_BLR = (seen_BLR.flatten(1) @ pairs).view_as(seen_BLR)
        maps = None
        if kwargs.get("output_attentions"):
            maps = (self.attention().expand(len(input_ids), -1, -1, -1),)
        decay = self.config.coupling_decay if self.training else 0.0
        penalty = decay / 2 * pairs.square().sum() if decay else None  # half: each pair stands there twice
        return ToldOutput(last_hidden_state=told_BLR, attentions=maps, penalty=penalty)


class FactoredForMaskedLM(FactoredPreTrainedModel):
    """The logits of every token: a bias of the column, and for residues what the other columns say.

    Nothing needs to be masked: no position sees itself, so every one is a target.
    """

    def __init__(self, config: FactoredConfig):
        super().__init__(config)
        self.model = FactoredModel(config)
        # One row of V for each column, kept flat: a vector is exempt from weight decay as other biases are.
        self.bias = nn.Parameter(torch.empty(config.num_columns * config.vocab_size))
        self.post_init()

    def predict_contacts(self, input_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Return the family's contact score (L, L); see FactoredModel.

        ``input_ids`` is there for callers that treat all contact models alike: no sequence changes the map.
        """
        return self.model.predict_contacts()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        target_positions: torch.Tensor | None = None,
        **kwargs,
    ) -> FactoredOutput:
        """Predict every position from all others.

        Args:
            input_ids: (B, L) whole rows of the alignment, without special tokens.
            attention_mask: (B, L); tokens where it is 0 tell nothing.
            labels: (B, L), -100 where no loss is wanted (gaps); the loss is the mean over the others, and in
                training the penalty on top. With ``target_positions``, (T,).
            target_positions: (T,) places in the flattened batch; logits are then (T, V), for these alone.
            **kwargs: passed to the model and to the loss.
        """
        outputs = self.model(input_ids, attention_mask, **kwargs)
        told, L, V = outputs.last_hidden_state, self.config.num_columns, self.config.vocab_size
        bias = self.bias.view(L, V)
        if target_positions is not None:
            told, bias = told.flatten(0, 1)[target_positions], bias[target_positions % L]
        residues_R = torch.tensor(self.config.residue_token_ids, device=told.device)
        logits = told @ nn.functional.one_hot(residues_R, V).to(told.dtype) + bias
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=V, **kwargs)
            loss = loss if outputs.penalty is None else loss + outputs.penalty
        return FactoredOutput(
            loss=loss, logits=logits, attentions=outputs.attentions, penalty=outputs.penalty
        )
