"""The `[model]` table: which model, and what of it learns."""

from pydantic import Field, field_validator, model_validator

from fedomg.core.errors import UserError
from fedomg.core.options import Options
from fedomg.models import known_model
from fedomg.models.weights import CLASSIFIERS, NONE


class ModelOptions(Options):
    name: str = Field("cnn", description="which model, or package.module:name of your own")
    weights: str = Field(NONE, min_length=1, description="none: random; imagenet: from torchvision's cache; or a file, or its folder")
    frozen_batchnorm: bool = Field(False, description="BatchNorm normalises with the statistics that it starts with, and keeps them")
    frozen_backbone: bool = Field(False, description="train the head alone, on features that the body makes once of every example")

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_model(name)

    @model_validator(mode="after")
    def _with_effect(self) -> "ModelOptions":
        if self.weights != NONE and self.name not in CLASSIFIERS:
            raise UserError(f'model "{self.name}" has no ImageNet weights; remove model.weights (those who have: {", ".join(CLASSIFIERS)})')
        if self.frozen_batchnorm and self.frozen_backbone:
            raise UserError("model.frozen_batchnorm has no effect with model.frozen_backbone, which keeps all of the body; remove it")
        return self
