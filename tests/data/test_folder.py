"""Folders of the user's own images: layout, decoding, and one clear line for everything that can be wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedomg.core.errors import UserError
from fedomg.data import pictures
from fedomg.data.sources import folder

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def paint(path: Path, colour: tuple[int, int, int] = RED, size: tuple[int, int] = (12, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def noise(path: Path) -> Path:
    """A picture that does not compress, so that half of its file is half of the picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    paint(tmp_path / "photo" / "dog" / "1.png", RED)
    paint(tmp_path / "photo" / "cat" / "1.jpg", GREEN)
    paint(tmp_path / "art" / "dog" / "2.bmp", BLUE)
    paint(tmp_path / "art" / "dog" / "1.PNG", RED)
    return tmp_path


def test_domains_classes_and_pictures_in_the_order_of_their_names(root: Path) -> None:
    dataset = folder.load(root, 8)
    assert dataset.domain_names == ("art", "photo")
    assert dataset.class_names == ("cat", "dog")  # no cat in art
    assert dataset.domains.tolist() == [0, 0, 1, 1]
    assert dataset.labels.tolist() == [1, 1, 0, 1]
    assert dataset.inputs.shape == (4, 3, 8, 8)
    assert dataset.inputs.dtype == torch.uint8
    assert dataset.inputs.is_contiguous()
    assert dataset.inputs[0, :, 4, 4].tolist() == list(RED)
    assert dataset.inputs[1, :, 4, 4].tolist() == list(BLUE)
    assert dataset.split is None
    assert dataset.skipped == ()
    assert dataset.mean == (0.485, 0.456, 0.406)
    assert dataset.std == (0.229, 0.224, 0.225)


def test_what_is_hidden_or_no_image_is_passed_over(root: Path) -> None:
    (root / "readme.txt").write_text("at the root")
    (root / "art" / "ImageInfo.csv").write_text("beside the classes")
    (root / "art" / "dog" / "notes.txt").write_text("beside the images")
    (root / "art" / "dog" / "folder.png").mkdir()
    paint(root / ".hidden" / "dog" / "1.png")
    paint(root / "art" / ".thumbnails" / "1.png")
    paint(root / "art" / "dog" / "._1.png")
    dataset = folder.load(root, 4)
    assert len(dataset.inputs) == 4
    assert dataset.skipped == ()
    assert dataset.class_names == ("cat", "dog")


def test_images_that_do_not_decode_are_skipped_and_named(root: Path) -> None:
    (root / "art" / "dog" / "0.png").write_bytes(b"no image at all")
    (root / "art" / "dog" / "3.jpg").write_bytes(b"")
    (root / "photo" / "cat" / "0.png").symlink_to(root / "nowhere.png")
    dataset = folder.load(root, 4)
    assert dataset.skipped == ("art/dog/0.png", "art/dog/3.jpg", "photo/cat/0.png")
    assert dataset.labels.tolist() == [1, 1, 0, 1]
    assert dataset.inputs[0, :, 2, 2].tolist() == list(RED)
    assert dataset.inputs[2, 1, 2, 2] > 240


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".bmp", ".webp", ".tif", ".ppm"])
def test_a_truncated_image_is_skipped_not_half_read(root: Path, suffix: str) -> None:
    path = noise(root / "art" / "cat" / f"half{suffix}")
    whole = path.read_bytes()
    assert folder.load(root, 4).skipped == ()
    path.write_bytes(whole[: len(whole) // 2])
    assert folder.load(root, 4).skipped == (f"art/cat/half{suffix}",)


@pytest.mark.parametrize("side", [15, 25])  # Pillow warns above its limit and raises above twice its limit
def test_a_decompression_bomb_is_skipped(root: Path, monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    paint(root / "art" / "cat" / "bomb.png", size=(side, side))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    assert folder.load(root, 4).skipped == ("art/cat/bomb.png",)


def test_the_orientation_of_the_camera_is_applied(root: Path) -> None:
    image = Image.new("RGB", (16, 8), BLUE)
    image.paste(RED, (0, 0, 8, 8))
    orientation = image.getexif()
    orientation[0x0112] = 6  # turn by 90 degrees to the right
    image.save(root / "art" / "cat.png", exif=orientation)
    (root / "art" / "cat").mkdir()
    (root / "art" / "cat.png").rename(root / "art" / "cat" / "1.png")
    picture = folder.load(root, 8).inputs[0]
    assert picture[:, 1, 4].tolist() == list(RED)
    assert picture[:, 6, 4].tolist() == list(BLUE)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_become_white(root: Path, mode: str) -> None:
    (root / "art" / "cat").mkdir()
    path = root / "art" / "cat" / "1.png"
    if mode == "P":
        Image.new("P", (8, 8), 0).save(path, transparency=0)
    else:
        Image.new(mode, (8, 8)).save(path)
    assert bool((folder.load(root, 4).inputs[0] == 255).all())


def test_sixteen_bits_are_scaled_to_eight(root: Path) -> None:
    (root / "art" / "cat").mkdir()
    Image.fromarray(np.full((8, 8), 0x8000, np.uint16)).save(root / "art" / "cat" / "1.png")
    assert bool((folder.load(root, 4).inputs[0] == 0x80).all())


def test_grey_and_palette_images_become_rgb(root: Path) -> None:
    (root / "art" / "cat").mkdir()
    Image.new("L", (8, 8), 100).save(root / "art" / "cat" / "1.png")
    Image.new("RGB", (8, 8), GREEN).convert("P").save(root / "art" / "cat" / "2.gif")
    inputs = folder.load(root, 4).inputs
    assert inputs[0, :, 0, 0].tolist() == [100, 100, 100]
    assert inputs[1, :, 0, 0].tolist() == list(GREEN)


def assert_refused(root: Path, *phrases: str) -> None:
    with pytest.raises(UserError) as refusal:
        folder.load(root, 4)
    message = str(refusal.value)
    assert "\n" not in message
    for phrase in phrases:
        assert phrase in message


def test_a_root_that_is_missing(tmp_path: Path) -> None:
    assert_refused(tmp_path / "gone", "gone does not exist")


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    assert_refused(paint(tmp_path / "1.png"), "1.png is a file")


def test_a_path_that_cannot_be_one() -> None:
    assert_refused(Path("a\0b"), "cannot be read")


def test_a_root_without_domain_folders(tmp_path: Path) -> None:
    paint(tmp_path / "1.png")
    assert_refused(tmp_path, "holds no domain folders", "ROOT/DOMAIN/CLASS/IMAGE")


def test_a_domain_without_images(root: Path) -> None:
    (root / "cartoon" / "dog").mkdir(parents=True)
    assert_refused(root, 'domain "cartoon"', "holds no images")


def test_images_directly_in_a_domain_are_not_taken_for_a_class(root: Path) -> None:
    paint(root / "cartoon" / "1.png")
    assert_refused(root, 'domain "cartoon"', "ROOT/DOMAIN/CLASS/IMAGE")


def test_a_domain_without_an_image_that_decodes(root: Path) -> None:
    (root / "cartoon" / "dog").mkdir(parents=True)
    (root / "cartoon" / "dog" / "1.png").write_bytes(b"broken")
    (root / "cartoon" / "dog" / "2.png").write_bytes(b"broken")
    assert_refused(root, 'domain "cartoon"', "no image that decodes (2 skipped)")


def test_a_single_class(tmp_path: Path) -> None:
    paint(tmp_path / "art" / "dog" / "1.png")
    paint(tmp_path / "photo" / "dog" / "1.png")
    assert_refused(tmp_path, 'of one class, "dog"')


def test_a_single_class_that_decodes(tmp_path: Path) -> None:
    paint(tmp_path / "art" / "dog" / "1.png")
    (tmp_path / "art" / "cat").mkdir()
    (tmp_path / "art" / "cat" / "1.png").write_bytes(b"broken")
    assert_refused(tmp_path, 'of one class, "dog"')


def test_a_size_below_one(root: Path) -> None:
    with pytest.raises(UserError, match="resized to 0 pixels"):
        folder.load(root, 0)


@pytest.mark.parametrize("place", ["", "art", "art/dog"])
def test_a_folder_that_may_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    # Simulated, since permissions do not bind the administrator, who runs the tests in many containers.
    iterdir = Path.iterdir

    def guarded(self: Path) -> object:
        if self == root / place:
            raise PermissionError(13, "Permission denied")
        return iterdir(self)

    monkeypatch.setattr(Path, "iterdir", guarded)
    assert_refused(root, str(root / place), "cannot be read (Permission denied)")


def test_an_image_that_may_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert_refused(root, "1.PNG cannot be read (Permission denied)")


def test_errors_that_are_no_fault_of_the_image_are_not_swallowed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(content: bytes) -> Image.Image:
        raise MemoryError

    monkeypatch.setattr(pictures, "_decode", exhausted)
    with pytest.raises(MemoryError):
        folder.load(root, 5)
