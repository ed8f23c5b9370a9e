"""Matrix products by oneDNN."""

import pytest
import torch

from gptcli.engine import onednn
from gptcli.model.activations import ACTIVATIONS, Identity
from tests.engine.models import VOCABULARY, by_columns, config
from tests.models import lively_model


class TestOneDnn:
    @pytest.mark.parametrize("shape", [(1, 1, 24), (2, 3, 24), (100, 24)], ids=str)
    def test_gives_what_linear_gives_however_a_matrix_lies(self, shape):
        torch.manual_seed(0)
        x, bias, wide = torch.randn(shape), torch.randn(10), torch.randn(24, 30)
        with torch.inference_mode():
            for weight in (torch.randn(10, 24), torch.randn(24, 10).t(), wide[:, 10:20].t(), wide.t()[::3]):
                for b in (bias, None):
                    expected = torch.nn.functional.linear(x, weight, b)
                    torch.testing.assert_close(onednn.linear(x, weight, b), expected, rtol=1e-5, atol=1e-5)

    def test_is_left_alone_where_gradients_are_wanted_or_it_is_not_there(self, monkeypatch):
        monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None)
        monkeypatch.setattr(onednn, "is_there", lambda: True)
        model = lively_model(config())
        onednn.use_onednn(model)
        model(torch.tensor([[1, 2]])).sum().backward()  # with gradients it is not called
        with torch.inference_mode(), pytest.raises(TypeError):
            model(torch.tensor([[1, 2]]))

    def test_what_cannot_be_called_or_multiplies_wrong_is_not_there(self, monkeypatch):
        assert onednn.is_there()
        for broken in (None, lambda *_: (_ for _ in ()).throw(RuntimeError), lambda x, w, *_: x @ w.t()):
            onednn.is_there.cache_clear()
            monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", broken)
            assert not onednn.is_there()
        onednn.is_there.cache_clear()

    @pytest.mark.parametrize("has_products", [True, False])
    def test_widens_float16_where_the_processor_has_no_products_of_it(self, monkeypatch, has_products):
        monkeypatch.setattr(onednn, "multiplies_half", lambda: has_products)
        torch.manual_seed(0)
        weight, bias = torch.randn(10, 24).half(), torch.randn(10).half()
        with torch.inference_mode():
            for n in (1, onednn.WIDENING_TOKENS, 100):
                x = torch.randn(n, 24).half()
                y = onednn.linear(x, weight, bias)
                exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
                assert y.dtype == torch.float16
                assert (y - exact).abs().max() < 2e-2
                if n > 1 and not has_products:  # then it is as exact as the type allows
                    assert (y - exact).abs().max() <= exact.abs().max() * 2**-11 * 1.01

    @pytest.mark.parametrize("bias", [True, False])
    def test_projects_query_key_and_value_at_once_where_they_lie_side_by_side(self, tmp_path, bias):
        plain = by_columns(lively_model(config()), tmp_path / "plain")
        fused = by_columns(lively_model(config()), tmp_path / "fused")
        for model in (plain, fused):
            for block in model.trf_blocks if not bias else ():
                for linear in (block.att.W_query, block.att.W_key, block.att.W_value):
                    linear.bias = None
        onednn.use_onednn(fused)
        ids = torch.randint(0, VOCABULARY, (2, 20))
        with torch.inference_mode():
            assert (fused(ids) - plain(ids)).abs().max() < 1e-5
        assert all(isinstance(b.att.project, onednn.OneDnnProjection) for b in fused.trf_blocks)
        apart = lively_model(config())  # matrices of their own
        onednn.use_onednn(apart)
        assert not any(isinstance(block.att.project, onednn.OneDnnProjection) for block in apart.trf_blocks)

    @pytest.mark.parametrize("name", sorted(ACTIVATIONS))
    @pytest.mark.parametrize("is_there", [True, False])
    def test_activations_go_with_the_product_before_them(self, monkeypatch, name, is_there):
        plain, fused = (lively_model(config(activation=name)) for _ in range(2))
        monkeypatch.setattr(onednn, "is_there", lambda: is_there)
        onednn.use_onednn(fused)
        ids = torch.randint(0, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            assert (fused(ids) - plain(ids)).abs().max() < 1e-5
        is_fused = type(plain.trf_blocks[0].ff.layers[1]) in onednn.FUSED
        assert is_fused == (name in {"relu", "gelu", "gelu_tanh", "silu"})
        assert isinstance(fused.trf_blocks[0].ff.layers[1], Identity) == (is_fused or name == "identity")
        # With gradients PyTorch computes them, and the activation is not lost.
        torch.testing.assert_close(fused(ids), plain(ids), rtol=1e-5, atol=1e-5)

    def test_an_activation_that_is_computed_wrong_is_noticed(self, monkeypatch):
        def without(x, weight, bias, *_):
            return torch.nn.functional.linear(x, weight, bias)

        onednn.is_there.cache_clear()
        monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", without)
        assert not onednn.is_there()
        onednn.is_there.cache_clear()

    def test_takes_the_models_own_parameters(self):
        model = lively_model(config(tie_embeddings=True))
        before = dict(model.named_parameters())
        onednn.use_onednn(model)
        assert all(parameter is before[name] for name, parameter in model.named_parameters())
        assert model.out_head.weight is model.tok_emb.weight
