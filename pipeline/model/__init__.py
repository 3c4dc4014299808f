"""The files that travel inside a checkpoint; importing this package teaches the Auto classes about them.

``register`` serves processes that have this package and then need no remote code.
``register_for_auto_class`` makes saving copy the source beside the weights, for processes that do not.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from .configuration_factored import FactoredConfig
from .configuration_strand import StrandConfig
from .modeling_factored import FactoredForMaskedLM, FactoredModel
from .modeling_strand import (
    StrandForMaskedLM,
    StrandForSequenceClassification,
    StrandForTokenClassification,
    StrandModel,
)
from .tokenization_strand import KmerTokenizer

__all__ = [
    "FactoredConfig",
    "FactoredForMaskedLM",
    "FactoredModel",
    "KmerTokenizer",
    "StrandConfig",
    "StrandForMaskedLM",
    "StrandForSequenceClassification",
    "StrandForTokenClassification",
    "StrandModel",
]

for _config in (StrandConfig, FactoredConfig):
    AutoConfig.register(_config.model_type, _config)
    _config.register_for_auto_class()
for _auto, _config, _model in (
    (AutoModel, StrandConfig, StrandModel),
    (AutoModelForMaskedLM, StrandConfig, StrandForMaskedLM),
    (AutoModelForSequenceClassification, StrandConfig, StrandForSequenceClassification),
    (AutoModelForTokenClassification, StrandConfig, StrandForTokenClassification),
    (AutoModel, FactoredConfig, FactoredModel),
    (AutoModelForMaskedLM, FactoredConfig, FactoredForMaskedLM),
):
    _auto.register(_config, _model)
    _model.register_for_auto_class(_auto.__name__)
AutoTokenizer.register(StrandConfig, tokenizer_class=KmerTokenizer)
KmerTokenizer.register_for_auto_class("AutoTokenizer")
