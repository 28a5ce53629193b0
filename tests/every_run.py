"""Sweeps and long tests of which every run takes a few cases; the others are proofs.

By file and test: the beginnings of the case names that every run takes, none where the whole test
is a proof. Each of these paths has a quicker test that stays; ``make prove`` runs everything.
"""

EVERY_RUN: dict[str, tuple[str, ...]] = {
    "anatomy/test_lesions.py::test_every_residual_unit": ("vit_tiny", "resnet50"),
    "anatomy/test_lesions.py::test_inner_units_can_be_removed": (),
    "anatomy/test_papers_models.py::test_attention_however_it_is_written": ("eva02",),
    "anatomy/test_papers_models.py::test_gates_are_no_attention": ("legacy_seresnet18",),
    "anatomy/test_papers_models.py::test_inner_units_of_mobilevit": (),
    "anatomy/test_papers_models.py::test_timm": ("resnet18", "vit_tiny", "swin_tiny"),
    "anatomy/test_renaming.py::test_only_names_change": ("test_resnet", "test_vit"),
    "anatomy/test_replay.py::test_precisions": ("test_resnet-dtype0", "test_vit-dtype1"),
    "anatomy/test_replay.py::test_rectangular_images": ("test_vit",),
    "anatomy/test_replay.py::test_replays_the_model_bit_by_bit_at_any_batch_size": (
        "test_resnet", "test_vit",
    ),
    "cli/test_build.py::test_the_command_that_advice_ends_with_works": (),
    "geometry/test_blocks.py::"
    "test_many_starts_give_the_trace_of_each_units_part_of_the_dense_hessian": (),
    "models/families/test_alternet.py::test_anatomy_is_what_the_layout_says": ("micro_alternet",),
    "models/families/test_broadcast_vit.py::test_anatomy_and_size_are_those_of_micro_vit": (),
    "models/families/test_coat_cifar.py::test_anatomy_is_the_layout": (),
    "models/families/test_convit_cifar.py::test_anatomy_is_the_layout": (),
    "models/families/test_convolutional_vit.py::test_anatomy_is_that_of_vit": ("micro_vit_conv5",),
    "models/families/test_levit_cifar.py::test_anatomy_is_the_layout": (),
    "models/families/test_resnet_cifar.py::test_anatomy": ("micro_resnet_smooth",),
    "models/families/test_transformers_cifar.py::test_anatomy_is_the_layout": (
        "micro_vit_gap", "micro_pit",
    ),
    "models/test_build.py::test_the_same_command_gives_the_same_file": (),
    "models/test_build.py::test_weights_of_another_file_and_fresh_ones": (),
    "models/test_build.py::test_what_was_built_can_be_built_further": (),
    "probes/test_agreement.py::test_fourier_and_variance_equal_the_naive_twin": (
        "resnet18-options0", "vit_tiny_patch16_224-options1",
    ),
    "probes/test_hessian.py::test_agrees_with_curvlinops": ("False",),
    "run/test_engines.py::test_two_jobs_give_the_numbers_of_one": (),
    "surgery/test_build_up.py::test_families_get_the_promised_anatomy_and_train": ("convnext",),
    "surgery/test_build_up.py::test_the_papers_fourth_block": (),
    "surgery/test_calls.py::test_a_part_of_an_anatomy_restricts_the_build_up": (),
    "surgery/test_context_broadcasting.py::"
    "test_a_depthwise_convolution_inside_leaves_an_mlp_an_mlp": ("mlp-end",),
    "surgery/test_eigen_attention.py::test_refusals": (
        "resnet", "talking heads", "gate", "used twice", "wide",
    ),
    "surgery/test_localise.py::test_each_query_sees_its_neighbours_alone": (
        "timm, not fused", "torchvision", "own",
    ),
    "surgery/test_localise.py::test_refusals": (
        "resnet", "linear", "causal", "way round", "no numbers",
    ),
    "surgery/test_operate.py::test_one_export": ("build_up", "gap_head", "localise"),
    "train/search/test_search.py::test_killed_again_and_again_it_ends_with_the_same_bytes": (),
    "train/test_train.py::test_stopped_anywhere_it_ends_with_the_same_bytes": (
        "each step", "never",
    ),
}  # fmt: skip
