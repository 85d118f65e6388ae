"""Decorators with which plug-ins register what they add (docs/plugins.md)."""

from branchwise.agent import register_protocol as protocol
from branchwise.evaluation import register_baseline as baseline
from branchwise.retrieval import register_retriever as retriever
from branchwise.rewards import register_reward as reward
from branchwise.sources import register_document_reader as document_reader
from branchwise.sources import register_reader as reader
from branchwise.training import register_walk as walk

__all__ = ["baseline", "document_reader", "protocol", "reader", "retriever", "reward", "walk"]
